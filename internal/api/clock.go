package api

// Clock says whether the clocks are fit to delete by.
type Clock struct {
	Deletes bool    `json:"deletes" doc:"Whether what is old may be deleted now"`
	Problem string  `json:"problem,omitempty" doc:"Why nothing is deleted for its age" example:"the database's clock is 60d ahead of the clock of this process"`
	Doubt   bool    `json:"doubt" doc:"Whether the problem lasts until somebody confirms that the database's clock is right"`
	Offset  float64 `json:"offset_seconds" doc:"How far the database's clock is ahead of this process's clock"`
}

// ClockConfirmed is the answer to a confirmation of the database's clock.
type ClockConfirmed struct {
	Confirmed string `json:"confirmed" doc:"What was in doubt; empty: nothing was"`
	Clock
}
