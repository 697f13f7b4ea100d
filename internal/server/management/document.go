package management

import "github.com/danielgtaylor/huma/v2"

// tags are the groups of operations in the OpenAPI document and on its page.
var tags = []*huma.Tag{
	{Name: "autoprune", Description: "Policies that delete tags, previews of them, their runs"},
	{Name: "check", Description: "Comparing the database with the blob store"},
	{Name: "error", Description: "What kinds of errors mean"},
	{Name: "gc", Description: "Garbage collection: its state, runs by hand, why something is kept"},
	{Name: "logs", Description: "The audit log"},
	{Name: "loosefk", Description: "Cleaning up behind deleted repositories and namespaces"},
	{Name: "manifest", Description: "What manifests hold and who refers to them"},
	{Name: "namespace", Description: "Namespaces, which are Quay's organizations: the first parts of repositories' names"},
	{Name: "pullstatistics", Description: "How often and when something was pulled"},
	{Name: "repository", Description: "Repositories"},
	{Name: "system", Description: "How the registry is"},
	{Name: "tag", Description: "Tags"},
	{Name: "tagprotection", Description: "Rules that keep tags as they are"},
	{Name: "webhook", Description: "Who is told of pushes, pulls, deletions and garbage collection in a namespace"},
}

// securitySchemes are the ways in which clients will authenticate. As long as there are
// no accounts, any client that reaches the registry may do everything.
var securitySchemes = map[string]*huma.SecurityScheme{
	"basic": {Type: "http", Scheme: "basic",
		Description: "Name and password of an account. There are no accounts yet, and what is sent is passed over"},
	"bearer": {Type: "http", Scheme: "bearer",
		Description: "A token of an account. There are no accounts yet, and what is sent is passed over"},
}

// optionalSecurity says that a request needs no authentication: the first alternative
// is empty (OpenAPI 3.1, "Security Requirement Object").
var optionalSecurity = []map[string][]string{{}, {"basic": {}}, {"bearer": {}}}
