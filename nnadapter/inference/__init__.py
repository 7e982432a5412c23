"""What a person calls: sessions, reports, comparisons, the default device."""
