package ui

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/policy"
)

// answer is what the form confirms of a policy's warnings: their codes, or none.
func (q *request) answer() string { return cmp.Or(q.form.Get("confirm"), "none") }

// confirmation is the answer as an operation's input has it.
func (q *request) confirmation() api.PolicyConfirmation {
	return api.PolicyConfirmation{Confirm: q.answer()}
}

// seen returns what a form sends whose page has shown these warnings, after those that were
// confirmed before.
func (q *request) seen(list []policy.Warning) string {
	answer := q.answer()
	for _, code := range policy.Codes(list) {
		answer += "," + string(code)
	}
	return answer
}

// warningsOf returns the warnings that the registry wants to be confirmed.
func warningsOf(err error) []policy.Warning {
	refused, ok := errors.AsType[*apiError](err)
	if !ok || refused.status != http.StatusConflict {
		return nil
	}
	var details struct{ Warnings []policy.Warning }
	if json.Unmarshal(refused.details, &details) != nil {
		return nil
	}
	return details.Warnings
}

// markRests adds to the policies why they rest.
func (d *policiesData) markRests() {
	if d.State == nil || d.State.Task == nil {
		return
	}
	for _, rows := range [][]policyRow{d.Own, d.Others} {
		for i := range rows {
			for j, r := range d.State.Task.Rests {
				if r.Policy == rows[i].UUID {
					rows[i].Rest = &d.State.Task.Rests[j]
				}
			}
		}
	}
}

// Codes returns the codes of the warnings for which the policy rests, as a form sends them.
func (r policyRow) Codes() string {
	var codes []string
	for _, code := range policy.Codes(r.Rest.Warnings) {
		codes = append(codes, string(code))
	}
	return strings.Join(codes, ",")
}

// confirmRest lets a policy delete that rests because of warnings.
func (q *request) confirmRest(p place, id string) error {
	version, _ := strconv.ParseInt(q.form.Get("version"), 10, 64)
	body := api.RestConfirmation{Version: version, Codes: []policy.WarningCode{}}
	for code := range strings.SplitSeq(q.form.Get("codes"), ",") {
		body.Codes = append(body.Codes, policy.WarningCode(code))
	}
	_, err := run(q, api.ConfirmRest, api.RestApproval{PrunePolicy: api.PrunePolicy{PruneNamespace: p.whole(), Policy: id}, Body: body})
	return q.showPolicies(noticeOf(err, "Confirmed: the policy deletes tags from now on."))
}
