package ui

import (
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/catalog"
)

// repositoryRow is a repository in a list.
type repositoryRow struct {
	api.ListedRepository
	Pulls  *recentPulls // nil: the registry hasn't said how often it was pulled
	Ranked int64        // pulls in the days of a list of those that were pulled most
}

// rowsOf returns the rows of a table of repositories.
func rowsOf(list []api.ListedRepository) []repositoryRow {
	rows := make([]repositoryRow, len(list))
	for i, r := range list {
		if rows[i].ListedRepository = r; r.RecentPulls != nil {
			rows[i].Pulls = &recentPulls{*r.RecentPulls}
		}
	}
	return rows
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
	list, err := run(q, api.ListRepositories, api.RepositoryQuery{
		NameFilter: q.nameFilter(), Namespace: q.query("namespace"), Sort: sort, Statistics: true,
	})
	if err != nil {
		return err
	}
	keep := q.keep("q", "namespace", "sort")
	t := repositoryTable{Rows: rowsOf(list.Repositories)}
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
	list, err := run(q, api.ListNamespaces, api.NamespaceQuery{NameFilter: q.nameFilter()})
	if err != nil {
		return err
	}
	type data struct {
		Query      string
		Address    registryAddress
		Namespaces []catalog.NamespaceInfo
		Pages      pages
	}
	return q.show("namespaces", page{
		Title: "Namespaces", Section: "namespaces", Lead: "A namespace is the first part of its repositories' names. Policies, quotas, teams and robots belong to it.",
		Data: data{q.query("q"), q.registryAddress(), list.Namespaces, q.pagesOf(q.keep("q"), list.NextPage)},
		Same: []same{command("purser namespace list"), call("GET", "/organization")},
	})
}
