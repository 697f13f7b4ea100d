package ui

import (
	"net/http"
	"net/url"
	"strings"
	"time"

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
	"save": "The robot was saved.", "enable": "The robot can log in again.", "disable": "The robot can no longer log in.",
	"delete": "The robot was deleted with its secrets and roles.", "give": "The robot has the role.", "take": "The role was taken away.",
	"federate":   "The rule was added. Tokens that satisfy it log in as the robot from now on.",
	"unfederate": "The rule was removed, and what clients got by it has ended.", "unfederate-all": "The robot has no rules now, and what clients got by them has ended.",
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
		Typed          url.Values // of a form that was refused
		Limits         limitFields
	}
	if q.open() {
		d.Off = noAccounts
	}
	d.Namespace, d.Typed, d.Limits = namespace, q.form, q.typedLimits()
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
		return q.showRobots(http.StatusBadRequest, failure(err))
	}
	made, err := run(q, api.CreateRobot, api.RobotNew{RobotItem: item, Body: &api.NewRobotForm{
		Description: strings.TrimSpace(q.form.Get("description")), Repositories: l.repositories, Actions: l.actions, ExpiresAt: l.end,
	}})
	if err != nil {
		if status := formStatus(err); status != 0 {
			return q.showRobots(status, failure(err))
		}
		return err
	}
	q.values["robot"], q.form = shortRobot(made.Name), nil // the page of the robot has other forms
	return q.showNewSecret("The robot was created.", made)
}

// showNewSecret shows the page of a robot with a secret that was just made.
func (q *request) showNewSecret(text string, made api.RobotView) error {
	return q.showRobotData(http.StatusOK, &notice{Text: text}, robotData{Made: &secret{For: made.Name, What: "secret", Value: made.Token}})
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
	Typed       bool // the description and the limits, in a form that was refused
	Renewal     renewal
	Roles       roleTable
	Federation  federationData
	Lines       []readyLine
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
	if q.form.Get("do") == "save" {
		d.Description, d.Limits, d.Typed = q.form.Get("description"), q.typedLimits(), true
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
		err = q.saveRobot(item)
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
		return q.showRobot(status, failure(err))
	}
	return err
}

// saveRobot changes the description and the limits of a robot.
func (q *request) saveRobot(item api.RobotItem) error {
	l, err := q.limits()
	if err != nil {
		return formError(err.Error())
	}
	description := strings.TrimSpace(q.form.Get("description"))
	_, err = run(q, api.ChangeRobot, api.RobotChange{RobotItem: item, Body: api.RobotChangeForm{
		Description: &description, Repositories: api.Limit{Set: true, Values: l.repositories}, Actions: api.Limit{Set: true, Values: l.actions},
	}})
	return err
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
