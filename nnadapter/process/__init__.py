"""What concerns the whole process: collector, standard output, closing, our own version. It knows nothing of models."""
