"""What every operation of the adapter IR computes, written down slowly and obviously: the oracle of the kit."""
