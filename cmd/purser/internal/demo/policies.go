package demo

import (
	"context"
	"time"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
)

// minAge is the age from which some of the demo's policies delete tags.
const minAge = 5 * time.Second

// policy is a policy of a repository.
type policy struct {
	repository string
	text       string // for people
	body       api.PolicyText
	id         string // once it is created
}

// protected is the pattern of the tags of demo/web that are protected.
const protected = "^v1\\.0$"

func newPolicies() []*policy {
	age := minAge.String()
	return []*policy{
		{repository: webRepo, text: "all but the newest 5 tags; v1.0 is protected",
			body: api.PolicyText(`{"method": "number_of_tags", "numTags": 5}`)},
		{repository: apiRepo, text: "pr-… older than " + age,
			body: api.PolicyText(`{"method": "creation_date", "olderThan": "` + age + `", "tagPattern": "^pr-"}`)},
		{repository: jobsRepo, text: "older than " + age + ", but keep v1.… and the newest 3",
			body: api.PolicyText(`{"method": "creation_date", "olderThan": "` + age + `", "keep": [{"tagPattern": "^v1\\."}, {"newest": 3}]}`)},
	}
}

// setPolicies protects a tag, shows what each policy would delete, and creates the policies.
func (t *tour) setPolicies(ctx context.Context) error {
	rule := api.ProtectionNew{At: api.At{Repository: webRepo}, Body: api.NewProtectionRule{Pattern: protected}}
	if _, err := api.CreateProtection.Call(ctx, t.api, rule); err != nil {
		return err
	}
	rows := [][]string{{"REPOSITORY", "POLICY DELETES", "TAGS", "FREES"}}
	for _, p := range t.policies {
		v, err := t.preview(ctx, api.PolicyAt{Repository: p.repository}, &p.body)
		if err != nil {
			return err
		}
		freed := "-"
		if v.Bytes != nil {
			freed = command.Size(*v.Bytes)
		}
		rows = append(rows, []string{p.repository, p.text, number(v.Deleted) + " of " + number(v.Tags), freed})
	}
	if err := t.line.say("\nPolicies, and what they would delete:\n"); err != nil {
		return err
	}
	if err := t.line.table(rows); err != nil {
		return err
	}
	for _, p := range t.policies {
		created, err := api.CreatePolicy.Call(ctx, t.api, api.PolicyNew{PolicyAt: api.PolicyAt{Repository: p.repository}, Body: p.body})
		if err != nil {
			return err
		}
		p.id = created.UUID
	}
	return nil
}
