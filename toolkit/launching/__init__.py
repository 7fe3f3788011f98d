"""From settings to ranks: `toolkit train`, a rank as a launcher starts it, and `toolkit doctor`."""
