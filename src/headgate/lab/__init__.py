"""The lab: simulation, drawings and schemes kept for comparison; for cli and bench only."""
