"""The ladder: what each stage of the settings is worth beside the script as it is."""
