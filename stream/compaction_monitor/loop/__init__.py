"""From what a check says to alerts, and to orders and what becomes of them."""
