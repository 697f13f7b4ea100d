package catalog

// Count is a number of rows. Exact is false if there are too many rows to count: then Rows is
// PostgreSQL's estimate (in a GCStatus) or the number at which counting stopped (elsewhere).
type Count struct {
	Rows  int64 `json:"count"`
	Exact bool  `json:"exact"`
}
