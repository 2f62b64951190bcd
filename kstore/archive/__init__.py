"""What backups are in their place: manifests, files named by their content, and a file system that reads them."""
