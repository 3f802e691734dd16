"""What must hold between the fields of a topology, rule by rule."""
