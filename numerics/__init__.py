"""Plain torch formulas that schemes and backends share."""
