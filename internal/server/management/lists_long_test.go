package management_test

import (
	"fmt"
	"testing"
)

// longRow is how many bytes the rows have that longRows makes: one fits into a page, and two don't.
const longRow = 600 << 10

// longRows makes rows of lists longer than a client could.
var longRows = []string{
	"UPDATE accounts SET description = repeat('d', %[1]d)",
	"UPDATE teams SET description = repeat('d', %[1]d)",
	"UPDATE credentials SET title = repeat('t', %[1]d)",
	"UPDATE sessions SET user_agent = repeat('u', %[1]d)",
	"UPDATE tagprotectionrules SET pattern = repeat('p', %[1]d / 2)", // an answer has it twice
	"UPDATE webhooks SET title = repeat('t', %[1]d)",
	"UPDATE webhooknotices SET last_error = repeat('e', %[1]d)",
	"UPDATE holdreporters SET unresolved = 1, unresolved_first = ARRAY[repeat('u', %[1]d)]",
	"UPDATE holds SET used_by = repeat('u', %[1]d)",
	"UPDATE auditlog SET detail = jsonb_build_object('text', repeat('d', %[1]d))",
	"UPDATE autopruneruns SET notices = jsonb_build_object('policy', repeat('n', %[1]d))",
}

// shortRows has the lists whose rows can't be long, with the most rows of a page, the most bytes of a row in
// the answer, and what bounds them.
var shortRows = map[string]struct {
	rows, bytes int
	why         string
}{
	"getLoggedInUser":                {500, 500, "the name of a namespace"},
	"getOrgRobotPermissions":         {500, 500, "the name of a repository"},
	"getUserRobotPermissions":        {500, 500, "the name of a repository"},
	"getOrganizationTeamPermissions": {500, 500, "the name of a repository"},
	"getOrganizationTeamMembers":     {500, 500, "the name of an account"},
	"getOrganizationMembers":         {10, 51 << 10, "100 teams and 100 repositories with names of 255 bytes; db.Page ends the page"},
	"getOrganizationCollaborators":   {10, 51 << 10, "100 teams and 100 repositories with names of 255 bytes; db.Page ends the page"},
	"getNamespaceUsage":              {900, 500, "500 names of repositories, and 400 days"},
	"getRepositoryPullStatistics":    {1000, 500, "a tag or digest, with counts and times"},
	"listAllUsers":                   {1000, 900, "a name and an address of 255 bytes"},
	"listAutoPruneAsks":              {500, 500, "a uuid and numbers"},
	"listAutoPruneExceptions":        {500, 600, "the name of a repository, and times"},
	"listAutoPruneExemptions":        {500, 500, "a tag and a uuid"},
	"listManifestReferrers":          {9, 66 << 10, "64 KiB of annotations; db.Page ends the page"},
	"listNamespaces":                 {100, 1000, "the name of a namespace, and numbers"},
	"listOrgTeamPermissions":         {500, 700, "the names of a team and a repository"},
	"listOrgUserPermissions":         {500, 700, "the names of an account and a repository"},
	"listRepoTeamPermissions":        {500, 700, "the names of a team and a repository"},
	"listRepoUserPermissions":        {500, 700, "the names of an account and a repository"},
	"listQuotas":                     {100, 8 << 10, "100 percentages"},
	"listUntaggedManifests":          {100, 10 << 10, "the platforms of an index of 64 KiB; memory for more is taken when the answer is written"},
	"listRepoTags":                   {100, 10 << 10, "the platforms of an index of 64 KiB; memory for more is taken when the answer is written"},
	"listRepos":                      {100, 4 << 10, "the name of a repository, and the pulls of 30 days"},
	"listStarredRepos":               {100, 4 << 10, "the name of a repository, and the pulls of 30 days"},
	"listTrash":                      {500, 1500, "names of what was deleted, and of what is in its way"},
	"listUnpulledRepositories":       {100, 500, "the name of a repository"},
	"listWaitingAutoPruneAsks":       {500, 500, "the name of a namespace, and numbers"},
}

// TestPagesFitTheirMemory: a page of each list takes no more memory than is reserved for it, 4 MiB,
// however long its rows are.
func TestPagesFitTheirMemory(t *testing.T) {
	t.Parallel()
	r, values := filled(t)
	for _, sql := range longRows {
		r.Exec(t, fmt.Sprintf(sql, longRow))
	}
	const reserved, perByte = 4 << 20, 4 // as in paging.go
	operations, s := operationsOf(t, r)
	used := map[string]bool{}
	for _, o := range operations {
		if o.answer == nil || !s.isPaged(o) {
			continue
		}
		n := len(r.Manage(t, "GET", o.pathOf(values)+"?limit=500", "").WantStatus(t, 200).Content)
		short, isShort := shortRows[o.id]
		used[o.id] = true
		switch {
		case perByte*n > reserved:
			t.Errorf("%s: a page has %d bytes, and only %d of memory are reserved for it", o.id, n, reserved)
		case n < longRow && !isShort:
			t.Errorf("%s: its rows aren't long: make one long in longRows, or say in shortRows what bounds them", o.id)
		case n >= longRow && isShort:
			t.Errorf("%s: shortRows says that its rows are short (%s), and a page has %d bytes", o.id, short.why, n)
		case perByte*short.rows*short.bytes > reserved:
			t.Errorf("%s: a page of %d rows of %d bytes takes more memory than is reserved", o.id, short.rows, short.bytes)
		}
	}
	for id := range shortRows {
		if !used[id] {
			t.Errorf("there is no list %s", id)
		}
	}
}
