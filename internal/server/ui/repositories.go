package ui

import (
	"net/url"
	"time"
)

// count is a number that the registry counted up to a limit.
type count struct {
	Value int64 `json:"count"`
	Exact bool  `json:"exact"`
}

// repositoryRow is a repository in a list.
type repositoryRow struct {
	Repository string     `json:"repository"`
	Visibility string     `json:"visibility"`
	IsPublic   bool       `json:"is_public"`
	Starred    bool       `json:"is_starred"`
	CreatedAt  time.Time  `json:"created_at"`
	PushedAt   *time.Time `json:"pushed_at"`
	Tags       count      `json:"tags"`
	// The members below are set if the page asked for statistics.
	Size         *storedSize  `json:"size"`
	LastPulledAt *time.Time   `json:"last_pulled_at"`
	Pulls        *recentPulls `json:"recent_pulls"`

	Ranked int64 // pulls in the days of a list of those that were pulled most
}

// storedSize is the size of a repository in a list.
type storedSize struct {
	Blobs int64 `json:"blobs"`
	Bytes int64 `json:"bytes"`
	Exact bool  `json:"exact"`
}

// showRepositories lists the repositories that the client may read.
func showRepositories(q *request) error {
	switch q.query("show") {
	case "top":
		return showTopRepositories(q)
	case "unpulled":
		return showUnpulledRepositories(q)
	}
	sort := oneOf(q.query("sort"), "name", "-name", "created", "-created")
	query := url.Values{"sort": {sort}, "limit": {"50"}, "statistics": {"true"}}
	for from, to := range map[string]string{"q": "contains", "namespace": "namespace", "page": "next_page"} {
		if value := q.query(from); value != "" {
			query.Set(to, value)
		}
	}
	var list struct {
		Repositories []repositoryRow `json:"repositories"`
		NextPage     string          `json:"next_page"`
	}
	if err := q.get("/repository", query, &list); err != nil {
		return err
	}
	keep := q.keep("q", "namespace", "sort")
	t := repositoryTable{Rows: list.Repositories}
	t.head(q.columns(sort, keep, [][2]string{{"name", "Repository"}, {"-created", "Created"}}))
	p := q.repositoriesPage(t.CountsPulls())
	p.Data = repositoriesData{
		Query: q.query("q"), Namespace: q.query("namespace"), Sort: sort, Address: q.registryAddress(), Table: t, Pages: q.pagesOf(keep, list.NextPage),
	}
	p.Same = []same{command("purser repo list"), call("GET", "/repository?statistics=true")}
	return q.show("repositories", p)
}

// showNamespaces lists the namespaces that the client may see.
func showNamespaces(q *request) error {
	query := url.Values{"limit": {"50"}}
	for from, to := range map[string]string{"q": "contains", "page": "next_page"} {
		if value := q.query(from); value != "" {
			query.Set(to, value)
		}
	}
	type namespaceRow struct {
		Name         string    `json:"name"`
		CreatedAt    time.Time `json:"created_at"`
		Repositories count     `json:"repositories"`
	}
	var list struct {
		Namespaces []namespaceRow `json:"namespaces"`
		NextPage   string         `json:"next_page"`
	}
	if err := q.get("/organization", query, &list); err != nil {
		return err
	}
	type data struct {
		Query      string
		Address    registryAddress
		Namespaces []namespaceRow
		Pages      pages
	}
	return q.show("namespaces", page{
		Title: "Namespaces", Section: "namespaces", Lead: "A namespace is the first part of its repositories' names. Policies, quotas, teams and robots belong to it.",
		Data: data{q.query("q"), q.registryAddress(), list.Namespaces, q.pagesOf(q.keep("q"), list.NextPage)},
		Same: []same{command("purser namespace list"), call("GET", "/organization")},
	})
}
