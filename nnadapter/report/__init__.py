"""Reports: what a plan does, as facts and as text, and what missing features of a device would be worth."""
