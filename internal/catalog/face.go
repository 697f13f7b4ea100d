package catalog

// NameUnknown returns the error for a request that names a repository which doesn't exist.
func NameUnknown(path string) error { return nameUnknown(path) }

// ManifestUnknown returns the error for a request that names a manifest, by tag or digest,
// which its repository doesn't have.
func ManifestUnknown(path, reference string) error { return manifestUnknown(path, reference) }
