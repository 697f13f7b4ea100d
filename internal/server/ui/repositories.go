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
}

// showRepositories lists the repositories that the client may read.
func showRepositories(q *request) error {
	sort := oneOf(q.query("sort"), "name", "-name", "created", "-created")
	query := url.Values{"sort": {sort}, "limit": {"50"}}
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
	type data struct {
		Query, Namespace, Sort, Host string
		Columns                      []column
		Repositories                 []repositoryRow
		Pages                        pages
	}
	p := page{
		Title: "Repositories", Section: "repositories",
		Data: data{
			q.query("q"), q.query("namespace"), sort, q.Host,
			q.columns(sort, keep, [][2]string{{"name", "Repository"}, {"", "Tags"}, {"", "Last push"}, {"-created", "Created"}}),
			list.Repositories, q.pagesOf(keep, list.NextPage),
		},
		Same: []same{command("purser repo list"), call("GET", "/repository")},
	}
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
		Query, Host string
		Namespaces  []namespaceRow
		Pages       pages
	}
	return q.show("namespaces", page{
		Title: "Namespaces", Section: "namespaces", Lead: "A namespace is the first part of its repositories' names. Policies, quotas, teams and robots belong to it.",
		Data: data{q.query("q"), q.Host, list.Namespaces, q.pagesOf(q.keep("q"), list.NextPage)},
		Same: []same{command("purser namespace list"), call("GET", "/organization")},
	})
}
