package forecast

// Told makes the forecast call fn for each tag that it deletes.
func (o Options) Told(fn func(day int, repository, tag string)) Options {
	o.deleted = fn
	return o
}

// SetMax changes how many states of tags, and how many manifests, a forecast may have.
func SetMax(states, manifests int) (restore func()) {
	oldStates, oldManifests := maxStates, maxManifests
	maxStates, maxManifests = states, manifests
	return func() { maxStates, maxManifests = oldStates, oldManifests }
}

// SetMaxBlobs changes how many blobs a forecast may have in memory.
func SetMaxBlobs(n int) (restore func()) {
	old := maxBlobs
	maxBlobs = n
	return func() { maxBlobs = old }
}
