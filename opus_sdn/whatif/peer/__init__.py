"""The published simulator's timing model, equal to the nanosecond: an exact engine and a fast one."""
