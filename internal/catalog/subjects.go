package catalog

// subjectLocks is the first key of the advisory locks of subjects.
const subjectLocks = "1886745444"

// subjectKey returns the SQL of the second key of a subject's advisory lock.
func subjectKey(repository, digest string) string {
	return "hashtext(" + repository + " || ':' || encode(" + digest + ", 'hex'))"
}
