package warnings

import (
	"context"
	"fmt"
	"slices"

	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/policy"
)

// reporters looks for the reporters of a namespace, if the policy needs them: it requires some, or did
// before the change, or takes for unused what nodes have and run.
func (j *judging) reporters(ctx context.Context, namespace int64) error {
	if j.policy == nil {
		return nil
	}
	var dropped []string
	if j.replaces() {
		dropped = j.policy.DroppedReporters(j.old.Policy)
	}
	absent, err := hold.NotLive(ctx, j.finder.Repositories.DB.Pool, namespace, slices.Concat(j.policy.RequireReporter, dropped))
	if err != nil {
		return err
	}
	for _, a := range absent {
		switch {
		case slices.Contains(dropped, a.Reporter):
			if !slices.Contains(j.silent, a.Reporter) {
				j.silent = append(j.silent, a.Reporter)
			}
		case a.Reported == nil && !slices.Contains(j.strangers.first, a.Reporter):
			j.strangers.add(a.Reporter)
		}
	}
	if !j.policy.ByLastUse() {
		return nil
	}
	live, err := hold.AnyLive(ctx, j.finder.Repositories.DB.Pool, namespace)
	if err != nil || live {
		return err
	}
	var name string
	if err := j.finder.Repositories.DB.Pool.QueryRow(ctx, "SELECT COALESCE((SELECT name FROM live_namespaces WHERE id = $1), '')", namespace).Scan(&name); err != nil {
		return fmt.Errorf("looking for reporters: %w", err)
	}
	if name == "" { // it was deleted meanwhile
		return nil
	}
	j.unreported.add(name)
	return nil
}

// replaces returns whether the policy takes the place of one that can be read.
func (j *judging) replaces() bool { return j.old != nil && j.old.Problem == "" }

// ofReporters returns the warnings about what is deployed, and about safeguards that the policy loses.
func (j *judging) ofReporters() (list []policy.Warning) {
	if e := j.strangers; e.n > 0 {
		list = append(list, policy.Warning{Code: policy.UnknownReporter, Number: e.n, Examples: e.first,
			Text: "it requires reporters that have never reported, and rests until they do"})
	}
	if j.unreported.n > 0 {
		list = append(list, lastUseUnproved(j.unreported))
	}
	if j.replaces() {
		list = append(list, j.policy.Dropped(j.old.Policy, j.silent)...)
	}
	return list
}

// lastUseUnproved warns of what is chosen by last use in namespaces where no reporter is live.
func lastUseUnproved(e examples) policy.Warning {
	return policy.Warning{Code: policy.LastUseUnproved, Number: e.n, Examples: e.first,
		Text: "last use is no proof: a node that has an image sends nothing when it starts it, and no reporter holds what runs in " + policy.Number(e.n, "namespace")}
}

// LastUseUnproved warns of what is chosen by last use in namespaces where no reporter is live.
func LastUseUnproved(namespaces []string) policy.Warning {
	var e examples
	for _, name := range namespaces {
		e.add(name)
	}
	return lastUseUnproved(e)
}
