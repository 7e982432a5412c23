"""What a plan does, as facts, and the facts as text."""
