"""Starting the user's program: one process without torch, or ranks on torch's elastic agent."""
