"""The rules: what a round or a trial regeneration says. Pure functions, no alerts."""
