package ui

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/server/ui/format"

	"github.com/purser-registry/purser/internal/api"
)

// Paths of the pages of robots.
const (
	robotsPath = "/ui/namespaces/{namespace}/-/robots"
	robotPath  = robotsPath + "/{robot}"
)

func (u *UI) addRobots() {
	u.add(robotsPath, func(q *request) error { return q.showRobots(http.StatusOK, q.doneNotice(robotDone)) }, createRobot)
	u.add(robotPath, func(q *request) error { return q.showRobot(http.StatusOK, q.doneNotice(robotDone)) }, changeRobot)
}

// robotDone has the sentences about what a form has done, by the value of the parameter "done".
var robotDone = map[string]string{
	"save": "The robot was saved.", unchanged: unchangedText, "enable": "The robot can log in again.", "disable": "The robot can no longer log in.",
	"delete": "The robot was deleted with its secrets and roles.", "give": "The robot has the role.", "take": "The role was taken away.",
	"federate":   "The rule was added. Tokens that satisfy it log in as the robot from now on.",
	"unfederate": "The rule was removed, and what clients got by it has ended.", "unfederate-all": "The robot has no rules now, and what clients got by them has ended.",
}

// robotFields are the fields of forms of robots by the members of the API.
var robotFields = map[string]string{"robot_shortname": "robot", "expires_at": "expires", "expiresAt": "expires"}

// robotError says of which field of the form for a new robot an error is, if the API doesn't.
func robotError(err error) error {
	if statusOf(err) == http.StatusConflict {
		return fieldError{"robot", format.Sentence(err.Error())}
	}
	return patternError(namedError(err, "robot"))
}

// patternError says that an error is about the repositories that a robot may use, if it is.
func patternError(err error) error {
	if statusOf(err) == http.StatusBadRequest && strings.Contains(err.Error(), " is no pattern of repositories") {
		return fieldError{"repositories", format.Sentence(err.Error())}
	}
	return err
}

// showRobots lists the robots of a namespace, with the form for a new one.
func (q *request) showRobots(status int, n *notice) error {
	namespace := q.values["namespace"]
	list, err := run(q, api.ListRobots, api.RobotQuery{
		At: api.At{Namespace: namespace}, Paging: q.paging("page", 40), NameContains: api.NameContains{Contains: q.query("q")},
	})
	if err != nil {
		return err
	}
	var d struct {
		Off, Namespace string
		Robots         []api.RobotView
		Find           find
		Pages          pages
		Typed          typed
		Limits         limitFields
	}
	if q.open() {
		d.Off = noAccounts
	}
	d.Namespace, d.Typed, d.Limits = namespace, q.refused, q.limitsOf("create")
	d.Robots, d.Pages = list.Robots, q.pagesOf(q.keep("q"), list.NextPage)
	d.Find.Text = q.query("q")
	d.Find.Needed = d.Find.Text != "" || d.Pages != (pages{})
	p := q.membershipPage(namespace, "Robots", "/-/robots", n)
	p.Data, p.Same = d, []same{
		command("purser robot list %s", namespace), command("purser robot create %s+NAME", namespace),
		call("GET", apiPath("/organization/%s/robots", namespace)), call("PUT", apiPath("/organization/%s/robots/{robot_shortname}", namespace)),
	}
	return q.showStatus(status, "robots", p)
}

// shortRobot returns the name of a robot without its namespace.
func shortRobot(name string) string {
	_, short, _ := strings.Cut(name, "+")
	return short
}

// createRobot creates a robot, and shows its page with its secret.
func createRobot(q *request) error {
	item := api.RobotItem{At: api.At{Namespace: q.values["namespace"]}, Robot: strings.TrimSpace(q.form.Get("robot"))}
	l, err := q.limits()
	if err != nil {
		return q.showRobots(http.StatusBadRequest, q.refuse(err, robotFields))
	}
	made, err := run(q, api.CreateRobot, api.RobotNew{RobotItem: item, Body: &api.NewRobotForm{
		Description: strings.TrimSpace(q.form.Get("description")), Repositories: l.repositories, Actions: l.actions, ExpiresAt: l.end,
	}})
	if err != nil {
		if status := formStatus(err); status != 0 {
			return q.showRobots(status, q.refuse(robotError(err), robotFields))
		}
		return err
	}
	q.values["robot"], q.form = shortRobot(made.Name), nil // the page of the robot has other forms
	return q.showNewSecret("The robot was created.", made)
}

// showNewSecret shows the page of a robot with a secret that was just made.
func (q *request) showNewSecret(text string, made api.RobotView) error {
	s := &secret{For: made.Name, What: "secret", Value: made.Token}
	return q.showMade(text, s, func() error { return q.showRobotData(http.StatusOK, &notice{Text: text}, robotData{Made: s}) })
}

// robotItem returns the robot of the request's path.
func (q *request) robotItem() api.RobotItem {
	return api.RobotItem{At: api.At{Namespace: q.values["namespace"]}, Robot: q.values["robot"]}
}

// robotData is the page of a robot.
type robotData struct {
	Off, Action string
	Robot       api.RobotView
	Made        *secret
	Description string
	Limits      limitFields
	Typed       typed
	Was         robotShown // what the page had shown when the form was made
	Renewal     renewal
	Roles       roleTable
	Federation  federationData
	Lines       []readyLine
}

// robotShown is what a page had shown of what its form changes.
type robotShown struct {
	Description string
	Limits      limitFields
}

// renewal is the form for a new secret, as it was typed.
type renewal struct {
	Expires string
	Overlap bool // the other secrets stay valid for a day
}

func (q *request) showRobot(status int, n *notice) error {
	return q.showRobotData(status, n, robotData{})
}

// showRobotData shows the robot of the request's path.
func (q *request) showRobotData(status int, n *notice, d robotData) error {
	item := q.robotItem()
	var err error
	if d.Robot, err = run(q, api.GetRobot, item); err != nil {
		return err
	}
	d.Action = link(robotPath, item.Namespace, item.Robot)
	if q.open() {
		d.Off = noAccounts
	}
	d.Description, d.Limits = d.Robot.Description, fieldsOf(d.Robot.Repositories, d.Robot.Actions)
	d.Was, d.Typed = robotShown{d.Description, d.Limits}, q.refused
	if q.form.Get("do") == "save" {
		d.Description, d.Limits = q.form.Get("description"), q.limitsOf("save")
		if q.form.Has(wasPrefix + "description") {
			d.Was = robotShown{q.form.Get(wasPrefix + "description"), limitFieldsIn(q.form, wasPrefix)}
		}
	}
	if q.form.Get("do") == "rotate" && d.Made == nil {
		d.Renewal = renewal{q.form.Get("expires"), q.form.Get("overlap") == "true"}
	}
	roles, err := run(q, api.ListRobotRoles, api.RobotRoleQuery{RobotItem: item, Paging: q.paging("roles", shownRolesOf)})
	if err != nil {
		return err
	}
	d.Roles = q.roleTable(d.Action, roles)
	rules, err := run(q, api.GetFederation, item)
	if err != nil {
		return err
	}
	d.Federation = q.federation(d.Action, rules)
	made := ""
	if d.Made != nil {
		made = d.Made.Value
	}
	d.Lines = readyLines(q.registryAddress(), item, made, rules)
	p := q.placePage(place{namespace: item.Namespace}, "/-/robots")
	p.Crumbs = append(p.Crumbs, crumb{item.Namespace, link("/ui/namespaces/{namespace}", item.Namespace)}, crumb{"Robots", link(robotsPath, item.Namespace)})
	name := d.Robot.Name
	p.Title, p.Notice, p.Data = name, n, d
	at := apiPath("/organization/%s/robots/%s", item.Namespace, item.Robot)
	p.Same = []same{
		command("purser robot show %s", name), command("purser robot limit %s", name), command("purser robot rotate %s", name), command("purser robot federate %s --issuer URL", name),
		command("purser grant set %s reader --robot %s", item.Namespace, item.Robot),
		call("GET", at), call("PATCH", at), call("POST", at+"/regenerate"), call("GET", at+"/permissions"), call("POST", at+"/federation"),
	}
	return q.showStatus(status, "robot", p)
}

// changeRobot runs a form of the page of a robot.
func changeRobot(q *request) error {
	item, do := q.robotItem(), q.form.Get("do")
	to := link(robotPath, item.Namespace, item.Robot)
	var err error
	switch do {
	case "rotate":
		var made api.RobotView
		if made, err = q.rotateRobot(item); err == nil {
			return q.showNewSecret("The robot has a new secret.", made)
		}
	case "save":
		var saved bool
		if saved, err = q.saveRobot(item); !saved {
			do = unchanged
		}
	case "enable", "disable":
		enabled := do == "enable"
		_, err = run(q, api.ChangeRobot, api.RobotChange{RobotItem: item, Body: api.RobotChangeForm{Enabled: &enabled}})
	case "give", "take":
		err = q.changeRole(api.UserRoles, api.RoleItem{User: item.Name()}, do == "give")
	case "federate":
		err = q.addFederation(item)
	case "unfederate":
		err = q.removeFederation(item)
	case "unfederate-all":
		_, err = run(q, api.DeleteFederation, item)
	case "delete":
		_, err = run(q, api.DeleteRobot, item)
		to = link(robotsPath, item.Namespace)
	default:
		err = formError("The form doesn't say what to do.")
	}
	if err == nil {
		return q.redirect(to + "?done=" + url.QueryEscape(do))
	}
	if status := formStatus(err); status != 0 {
		return q.showRobot(status, q.refuse(patternError(err), robotFields))
	}
	return err
}

// saveRobot changes the description and the limits of a robot, as far as they differ from what the page had
// shown.
func (q *request) saveRobot(item api.RobotItem) (saved bool, err error) {
	l, err := q.limits()
	if err != nil {
		return false, formError(err.Error())
	}
	if err := checkShown(q.form, "description"); err != nil {
		return false, err
	}
	was, err := limitsIn(q.form, wasPrefix)
	if err != nil {
		return false, formError(err.Error())
	}
	var form api.RobotChangeForm
	if changed(q.form, "description") {
		description := strings.TrimSpace(q.form.Get("description"))
		form.Description, saved = &description, true
	}
	if !sameElements(l.repositories, was.repositories) {
		form.Repositories, saved = api.Limit{Set: true, Values: l.repositories}, true
	}
	if !sameElements(l.actions, was.actions) {
		form.Actions, saved = api.Limit{Set: true, Values: l.actions}, true
	}
	if saved {
		_, err = run(q, api.ChangeRobot, api.RobotChange{RobotItem: item, Body: form})
	}
	return saved, err
}

// rotateRobot gives a robot a new secret. The others end at once, or in a day.
func (q *request) rotateRobot(item api.RobotItem) (made api.RobotView, err error) {
	l, err := q.limits()
	if err != nil {
		return made, formError(err.Error())
	}
	form := &api.RobotRegeneration{ExpiresAt: l.end}
	if q.form.Get("overlap") == "true" {
		form.Overlap = int(24 * time.Hour / time.Second)
	}
	return run(q, api.RegenerateRobot, api.RobotRenewal{RobotItem: item, Body: form})
}

// federationData are the rules by which tokens of other issuers log in as a robot, with the form for
// another one.
type federationData struct {
	Action   string
	Rules    []federationRow
	Host     string // the default audience
	Examples []federationExample
	Form     federationForm
	Typed    typed
}

// federationRow is a rule as the page shows it.
type federationRow struct {
	ID, Issuer, Subject, Audience string
	Claims                        []format.Pair
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
	d := federationData{Action: action, Host: q.registryAddress().Host, Examples: federationExamples, Typed: q.refused}
	words := format.Room(30 << 10)
	for _, r := range rules {
		row := federationRow{r.ID, words.Clip(512, r.Issuer), words.Clip(512, r.Subject), words.Clip(512, r.Audience), nil, 0}
		row.Claims, row.Left = format.PairsOf(&words, 20, r.Claims)
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
			return r, fieldError{"claims", "Write a claim as NAME=PATTERN, such as ref=refs/heads/main, and not as “" + format.Clip(100, line) + "”."}
		case twice:
			return r, fieldError{"claims", "The claim " + format.Clip(100, name) + " is there twice: a rule has one pattern for each."}
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
	refused, ok := errors.AsType[*apiError](err)
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
