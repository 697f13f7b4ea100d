package policies

import (
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/policy"
)

// MaxListed is how many policies a run, a preview and a forecast list.
const MaxListed = 1000

// PreviewPolicy is a policy that was applied.
type PreviewPolicy struct {
	ID         string       `json:"uuid,omitempty" doc:"Absent for a policy that isn't saved"`
	Scope      policy.Scope `json:"scope"`
	Repository string       `json:"repository,omitempty" doc:"Name of the repository, if the policy is a repository's"`
	// Policy is nil when it can't be read: Notice says why.
	Policy   *policy.Policy `json:"policy,omitempty" doc:"Absent when this version can't read the policy: see notice"`
	Notice   string         `json:"notice,omitempty" doc:"Why the policy could select nothing, or why its keep rules keep more tags"`
	Warnings []string       `json:"warnings,omitempty" doc:"Unintended tags that the policy's pattern may select"`
}

// Listed lists the policies that were applied in repositories: the first MaxListed, each once.
type Listed struct {
	List []PreviewPolicy
	told map[string]bool // policies that are in List
}

// Add adds the policies that apply in a repository.
func (l *Listed) Add(repository string, applied []judge.Applied) {
	for _, a := range applied {
		if l.told[a.ID] {
			continue
		}
		if len(l.List) == MaxListed {
			break
		}
		if l.told == nil {
			l.told = make(map[string]bool)
		}
		l.told[a.ID] = true
		told := PreviewPolicy{ID: a.ID, Scope: a.Scope, Warnings: a.Policy.Warnings()}
		if a.Problem == "" {
			told.Policy = &a.Policy
		}
		if a.Scope == policy.RepositoryScope {
			told.Repository = repository
		}
		l.List = append(l.List, told)
	}
}
