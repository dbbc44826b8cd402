"""What can be promised, and what can be checked: on fresh simulators, after learning."""
