package api

import (
	"net/http"

	"github.com/purser-registry/purser/internal/auth"
)

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

// The operations on the clocks.
var (
	GetClock = Operation[struct{}, Clock]{
		ID: "getClock", Method: http.MethodGet, Path: "/clock", Tag: "system", Access: auth.Operate,
		Summary:     "Get whether the clocks are fit to delete by",
		Description: "While clocks disagree, or the database's clock is in doubt, nothing is deleted for its age. The answer is about the replica that answers the request.",
	}
	ConfirmClock = Operation[struct{}, ClockConfirmed]{
		ID: "confirmClock", Method: http.MethodPost, Path: "/clock/confirm", Tag: "system", Access: auth.Operate,
		Summary:     "Say that the database's clock is right",
		Description: "Ends the doubt about the database's clock, so that what is old by it is deleted again. It doesn't help where two clocks differ: one of them must be set.",
	}
)
