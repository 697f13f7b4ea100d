package catalog

// Count is a number of rows. It isn't exact if there are too many to count: then a GCStatus
// has PostgreSQL's estimate, and an explanation has the number at which counting stopped.
type Count struct {
	Rows  int64 `json:"count"`
	Exact bool  `json:"exact"`
}
