"""Compiled models: one file from which a session starts without the model that it was made of.

saving       plans of a model that was compiled -> a file
reading      a file -> values; `segments`, `arrays`: what its parts hold
loading      a file -> programs, each asked of its driver first
engine       runs them
"""
