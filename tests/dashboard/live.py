"""Live data: charts, decisions, reconnects. A node without these calls says so."""
