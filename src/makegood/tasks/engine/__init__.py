"""The engine: executes one attempt of a run (attempt → step → call). Decisions come from tasks/rules."""
