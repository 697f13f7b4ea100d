package identity

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/go-ldap/ldap/v3"
)

// FoldGroup returns the form of an LDAP group's name or DN in which groups are compared: upper and
// lower case mean the same, and so do the ways to write a DN (RFC 4514).
func FoldGroup(text string) string {
	if strings.Contains(text, "=") {
		if dn, err := ldap.ParseDN(text); err == nil {
			return strings.ToLower(dn.String())
		}
	}
	return strings.ToLower(text)
}

// GroupKeys returns what the groups in the configuration and of teams are compared with: of
// SourceLDAP the folded names and DNs of the person's groups, else the groups. A name with "="
// isn't among them, since whoever may make a group could give it the DN of another one as name.
func (i Identity) GroupKeys() []string {
	if i.Source != SourceLDAP {
		return i.Groups
	}
	keys := slices.Clone(i.GroupDNs)
	for _, name := range i.Groups {
		if !strings.Contains(name, "=") {
			keys = append(keys, FoldGroup(name))
		}
	}
	return keys
}

// configuredGroups returns the folded groups of a list in the configuration. A list is written with
// commas, and a DN has commas too, so a DN goes on until it is one below `base`.
func configuredGroups(list []string, base *ldap.DN) (groups []string, err error) {
	for i := 0; i < len(list); i++ {
		if !strings.Contains(list[i], "=") {
			groups = append(groups, FoldGroup(list[i]))
			continue
		}
		found := false
		for j := i + 1; j <= len(list) && !found; j++ {
			text := strings.Join(list[i:j], ",")
			if dn, err := ldap.ParseDN(text); err == nil && base.AncestorOfFold(dn) {
				groups, found, i = append(groups, FoldGroup(text)), true, j-1
			}
		}
		if !found {
			return nil, fmt.Errorf("the group %q isn't the name of a group, nor the DN of one below %s", list[i], base)
		}
	}
	return groups, nil
}

// groupWatch logs groups of the configuration in which nobody ever was, since their names may be
// wrong. Its methods may be called concurrently.
type groupWatch struct {
	log     *slog.Logger
	setting string // the settings' common prefix

	mu     sync.Mutex
	unseen map[string]string // the setting that names the group
	people map[string]bool   // who has logged in, until told
	told   bool
}

// watchAfter is how many people have logged in when groups that nobody was in are logged.
const watchAfter = 20

func newGroupWatch(log *slog.Logger, setting string, required, admin []string) *groupWatch {
	w := &groupWatch{log: cmp.Or(log, slog.Default()), setting: setting, unseen: map[string]string{}, people: map[string]bool{}}
	for _, g := range required {
		w.unseen[g] = "required_groups"
	}
	for _, g := range admin {
		w.unseen[g] = "admin_groups"
	}
	return w
}

// met notes that a person was identified, and whether that person is refused for being in none of
// the required groups. It logs, once, the groups in which nobody was: at the first refusal if
// nobody was in any of the required groups, else when watchAfter people have come.
func (w *groupWatch) met(i Identity, refused bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.told || len(w.unseen) == 0 {
		return
	}
	for _, key := range i.GroupKeys() {
		delete(w.unseen, key)
	}
	if !refused {
		w.people[i.Subject] = true
	}
	if len(w.people) < watchAfter && (!refused || len(w.people) > 0) {
		return
	}
	w.told = true
	for group, setting := range w.unseen {
		w.log.Warn("nobody who has logged in is in a group that the configuration names: perhaps its name is wrong",
			"setting", w.setting+setting, "group", group, "people", len(w.people), "groups_of_the_last", shortList(i.Groups))
	}
}

// shortList returns the first of some names as text.
func shortList(names []string) string {
	const most = 10
	text := strings.Join(names[:min(len(names), most)], ", ")
	if len(names) > most {
		text += ", …"
	}
	return text
}
