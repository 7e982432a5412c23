"""Custom kernels: registered per device and op, chosen by one stated rule, run between a driver's programs."""
