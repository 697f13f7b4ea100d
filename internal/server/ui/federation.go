package ui

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/purser-registry/purser/internal/api"
)

// federationData are the rules by which tokens of other issuers log in as a robot, with the form for
// another one.
type federationData struct {
	Action   string
	Rules    []federationRow
	Host     string // the default audience
	Examples []federationExample
	Form     federationForm
}

// federationRow is a rule as the page shows it.
type federationRow struct {
	ID, Issuer, Subject, Audience string
	Claims                        []pair
	Left                          int // how many claims aren't shown
}

// federationForm is the form for a rule.
type federationForm struct {
	Issuer, Subject, Audience, Claims string
	SubjectLike                       string // how a subject looks
	Opened                            bool   // somebody has asked for an example, or has sent the form
}

// federationExample is where tokens come from, with the issuer, if it is always the same, and a subject.
type federationExample struct{ Name, Text, Issuer, Subject string }

// federationExamples are those of docs/access-control.md. Forms aren't filled with their subjects: there
// may be strangers with these names.
var federationExamples = []federationExample{
	{"github", "GitHub Actions", "https://token.actions.githubusercontent.com", "repo:OWNER/REPOSITORY:ref:refs/heads/main"},
	{"gitlab", "GitLab CI", "https://gitlab.com", "project_path:GROUP/PROJECT:ref_type:branch:ref:main"},
	{"kubernetes", "Kubernetes", "", "system:serviceaccount:NAMESPACE:ACCOUNT"},
}

// federation returns the rules of a robot as its page shows them, and the form as it was typed or, for the
// parameter "example" of the query, as an example has it.
func (q *request) federation(action string, rules api.FederationRules) federationData {
	d := federationData{Action: action, Host: q.registryAddress().Host, Examples: federationExamples}
	words := room(30 << 10)
	for _, r := range rules {
		row := federationRow{r.ID, words.clip(512, r.Issuer), words.clip(512, r.Subject), words.clip(512, r.Audience), nil, 0}
		row.Claims, row.Left = pairsOf(&words, 20, r.Claims)
		d.Rules = append(d.Rules, row)
	}
	d.Form.SubjectLike = federationExamples[0].Subject
	for _, e := range federationExamples {
		if e.Name == q.query("example") {
			d.Form.Issuer, d.Form.SubjectLike, d.Form.Opened = e.Issuer, e.Subject, true
		}
	}
	if f := q.form; f.Get("do") == "federate" {
		d.Form.Issuer, d.Form.Subject, d.Form.Audience, d.Form.Claims, d.Form.Opened = f.Get("issuer"), f.Get("subject"), f.Get("audience"), f.Get("claims"), true
	}
	return d
}

// typedRule reads the form for a rule. Each line of the further claims is NAME=PATTERN.
func (q *request) typedRule() (r api.FederationRule, err error) {
	f := q.form
	r.Issuer, r.Subject, r.Audience = strings.TrimSpace(f.Get("issuer")), strings.TrimSpace(f.Get("subject")), strings.TrimSpace(f.Get("audience"))
	for line := range strings.Lines(f.Get("claims")) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		name, pattern, ok := strings.Cut(line, "=")
		name, pattern = strings.TrimSpace(name), strings.TrimSpace(pattern)
		switch _, twice := r.Claims[name]; {
		case !ok || name == "" || pattern == "":
			return r, formError("Write a claim as NAME=PATTERN, such as ref=refs/heads/main, and not as “" + clip(100, line) + "”.")
		case twice:
			return r, formError("The claim " + clip(100, name) + " is there twice: a rule has one pattern for each.")
		}
		if r.Claims == nil {
			r.Claims = make(map[string]string)
		}
		r.Claims[name] = pattern
	}
	return r, nil
}

// addFederation adds the rule of a form to those of a robot.
func (q *request) addFederation(item api.RobotItem) error {
	rule, err := q.typedRule()
	if err != nil {
		return err
	}
	rules, err := run(q, api.GetFederation, item)
	if err != nil {
		return err
	}
	_, err = run(q, api.SetFederation, api.FederationChange{RobotItem: item, Replaces: rules.Seen(), Body: append(slices.Clone(rules), rule)})
	return ofRule(err, len(rules))
}

// removeFederation removes the rule that a form names.
func (q *request) removeFederation(item api.RobotItem) error {
	rules, err := run(q, api.GetFederation, item)
	if err != nil {
		return err
	}
	rest := slices.DeleteFunc(slices.Clone(rules), func(r api.FederationRule) bool { return r.ID == q.form.Get("rule") })
	if len(rest) == len(rules) { // each change gives all rules new identifiers
		return &apiError{status: http.StatusConflict, message: "The rules were changed meanwhile, so none was removed. These are the rules now."}
	}
	_, err = run(q, api.SetFederation, api.FederationChange{RobotItem: item, Replaces: rules.Seen(), Body: rest})
	return ofRule(err, -1)
}

// indexForm is how the API's errors name a rule of a list.
var indexForm = regexp.MustCompile(`^\[(\d+)\]: `)

// ofRule says in words which rule of a robot an error of the API is about. `added` is the index of the rule
// that the form asks for, which needs no name.
func ofRule(err error, added int) error {
	refused, ok := err.(*apiError)
	if !ok {
		return err
	}
	m := indexForm.FindStringSubmatch(refused.message)
	if m == nil {
		return err
	}
	changed := *refused
	changed.message = strings.TrimPrefix(refused.message, m[0])
	if i, _ := strconv.Atoi(m[1]); i != added {
		changed.message = fmt.Sprintf("rule %d of the list isn't allowed any more, remove it first: %s", i+1, changed.message)
	}
	return &changed
}
