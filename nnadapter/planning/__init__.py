"""From a prepared model to a plan: what devices say, where every atom goes, what they admit.

support   a device's verdicts
forms     the form of a model that fits its devices
analysis  a model at one set of shapes, judged in that form
placing   a device for every atom, by the session's policy
pricing   what a plan costs
limiting  segments that limits of a person give up
judged    places and cuts until every segment is admitted
"""
