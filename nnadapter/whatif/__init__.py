"""What-if: which features a device lacks, and what each of them would be worth."""
