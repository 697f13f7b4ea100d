package management_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// boundedLists names what bounds the lists of answers that don't come in pages. A key is a schema
// and its member, or an operation and the member of its answer, or an operation whose answer is the
// list.
var boundedLists = map[string]string{
	// Of accounts.
	"RobotView.actions": "the actions that there are", "RobotView.repositories": "50 patterns, 4 KiB together",
	"RobotView.secrets": "100, the newest", "RobotView.unstructured_metadata": "always empty",
	"TokenView.actions": "the actions that there are", "TokenView.repositories": "50 patterns, 4 KiB together",
	"FederationRule.claims": "20", "getOrgRobotFederation": "1000 rules", "getUserRobotFederation": "1000 rules",
	"createOrgRobotFederation": "the rules of a request, of 64 KiB", "createUserRobotFederation": "the rules of a request, of 64 KiB",
	"TeamView.groups": "the groups of a request, of 64 KiB", "MemberSync.groups": "the groups of a request, of 64 KiB",
	"NamespaceDetails.teams":          "100; teams_next_page says where the list goes on",
	"changeUserDetails.organizations": "500, the first page of getLoggedInUser",
	// Of tags, manifests and repositories.
	"DescribedManifest.indexes": "100", "DescribedManifest.tags": "100", "DescribedManifest.layers": "a manifest, of 4 MiB",
	"DescribedManifest.manifests": "a manifest, of 4 MiB", "ImageManifests.digests": "100", "ShortManifests.manifests": "10", "ShortManifest.tags": "3", "Layer.urls": "a manifest, of 4 MiB", "Layer.command": "a configuration of 1 MiB",
	"ListedReferrer.annotations": "512 KiB of a page", "ListedTag.platforms": "an index of 64 KiB", "UntaggedManifest.platforms": "an index of 64 KiB", "RecentPulls.days": "30 days",
	"Trashed.conflicts": "2", "CreatedRule.warnings": "the kinds of warnings", "ProtectionRule.warnings": "the kinds of warnings",
	"FoundItems.results": "limit, up to 50, of each of 4 kinds", "FoundItems.more": "the kinds", "FoundItem.tags": "3",
	// Of policies.
	"PolicyList.policies": "32 of a repository, a namespace and the registry", "PolicyIDBody.warnings": "the kinds of warnings",
	"PolicyIDBody.found": "the kinds of warnings", "JudgedPreview.found": "the kinds of warnings", "Warning.examples": "5",
	"TaskStatus.rests": "1000", "Rest.reporters": "32", "Rest.warnings": "the kinds of warnings",
	"PolicyView.annotations": "32", "PolicyView.labels": "32", "Policy.annotations": "32", "Policy.labels": "32", "PolicyView.keep": "16", "PolicyView.warnings": "the kinds of warnings",
	"RunSummary.held_by": "100 reporters", "RunSummary.notices": "the policies of a namespace, 3,200 of its repositories",
	"RunDetails.held_by": "100 reporters", "RunDetails.notices": "the policies of a namespace, 3,200 of its repositories",
	"RunDetails.asks": "1000", "RunDetails.per_repository": "1000", "RunDetails.would": "100", "RunRepository.policies": "64 apply to a repository",
	"Undone.gone_tags": "100", "Undone.trash_names": "100", "Forecast.days": "365 days", "Forecast.notes": "the kinds of notes", "Forecast.policies": "1000",
	"Forecast.settings": "the settings that are compared", "PreviewPolicy.warnings": "the kinds of warnings",
	"JudgedPreview.asks": "1000", "JudgedPreview.going": "limit, up to 10,000", "JudgedPreview.staying": "limit, up to 10,000", "JudgedPreview.would": "limit, up to 10,000",
	"JudgedPreview.per_repository": "1000", "JudgedPreview.policies": "1000", "JudgedPreview.reasons": "the codes of reasons",
	"JudgedPreview.untagged": "limit, up to 10,000",
	"WebhookView.events":     "the events that there are", "WebhookMade.events": "the events that there are",
	"ChangedTags.refused": "500", "ChangedTags.tags": "500", "RestoredTags.refused": "1000", "FreePlan.notices": "the kinds of notices", "FreePlan.per_repository": "1000",
	"Freeing.namespaces": "500", "ExceptionList.exceptions": "1 of a repository, a page of a namespace",
	// Of operators.
	"QuotaView.limits": "100 percentages", "listOrganizationQuota": "1 quota", "listUserQuota": "1 quota",
	"listOrganizationQuotaLimit": "100 percentages", "listUserQuotaLimit": "100 percentages",
	"Activity.days": "31 days", "PullHistory.days": "3660 days", "RedisPulls.problems": "the kinds of problems",
	"AggregatedLogs.aggregated": "a million entries, by day and kind", "LogEntry.metadata": "one entry, and the page's 512 KiB",
	"CheckRun.findings": "1000", "CheckReport.problems": "1000", "Finding.repositories": "3", "GCRun.findings": "1000",
	"Rotation.detached": "the partitions of a day", "Rotation.dropped": "the partitions of a day",
	"RunList.runs": "10 runs are kept", "GCStatus.set_aside": "the queues", "LooseStatus.pending": "the tables",
	"SystemState.configuration": "the settings", "SystemState.disks": "2", "SystemState.replicas": "100", "Reported.missing_digests": "100", "Reporter.unresolved_first": "20",
	"RegistryUsage.days": "400", "RegistryUsage.disks": "those of the machine", "RegistryUsage.namespaces": "1000", "RegistryUsage.repositories": "1000",
	"Held.names":        "5",
	"SomeBlobUse.first": "20", "SomeDigest.first": "20", "SomeHoldingIndex.first": "20", "SomeString.first": "20",
	"ExplainedBlob.explanation": "the lines of one blob", "ExplainedManifest.explanation": "the lines of one manifest",
	"ExplainedManifest.held_by":    "200 reporters",
	"TopRepositories.repositories": "limit, up to 1000", "TopTags.tags": "limit, up to 1000",
}

// schemas reads the schemas of the OpenAPI document.
type schemas struct {
	all  map[string]any
	used map[string]bool // keys of boundedLists
}

// resolve returns a schema with the name that it has in the document, "" for one without a name.
func (s *schemas) resolve(schema map[string]any) (string, map[string]any) {
	ref, _ := schema["$ref"].(string)
	if ref == "" {
		return "", schema
	}
	name := ref[strings.LastIndex(ref, "/")+1:]
	named, _ := s.all[name].(map[string]any)
	return name, named
}

// lists returns where a schema has lists: arrays, and objects with any number of members. `key`
// says where the schema itself is. The lists of `in`, the schemas on the way, aren't followed again.
func (s *schemas) lists(schema map[string]any, key string, in []string) (found []string) {
	name, schema := s.resolve(schema)
	if name != "" {
		if slices.Contains(in, name) {
			return nil
		}
		key, in = name, append(slices.Clone(in), name)
	}
	add := func(below map[string]any, key string) { found = append(found, s.lists(below, key, in)...) }
	if items, ok := schema["items"].(map[string]any); ok {
		if schema["maxItems"] == nil {
			found = append(found, key)
		}
		add(items, key)
	}
	if more, ok := schema["additionalProperties"].(map[string]any); ok {
		found = append(found, key)
		add(more, key)
	}
	for _, kind := range []string{"oneOf", "anyOf", "allOf"} {
		choices, _ := schema[kind].([]any)
		for _, choice := range choices {
			add(choice.(map[string]any), key)
		}
	}
	members, _ := schema["properties"].(map[string]any)
	for _, member := range slices.Sorted(maps.Keys(members)) {
		add(members[member].(map[string]any), key+"."+member)
	}
	return found
}

// operationOf is an operation of the document.
type operationOf struct {
	id, method, path string
	parameters       []string
	answer           map[string]any // the schema of the answer, nil: it isn't JSON, or there is none
}

func operationsOf(t *testing.T, r *registry) (list []operationOf, s *schemas) {
	t.Helper()
	var document struct {
		Components struct{ Schemas map[string]any }
		Paths      map[string]map[string]struct {
			OperationID string
			Parameters  []struct{ Name, In string }
			Responses   map[string]struct {
				Content map[string]struct{ Schema map[string]any }
			}
		}
	}
	r.Manage(t, "GET", "/openapi.json", "").Into(t, 200, &document)
	for path, methods := range document.Paths {
		for method, op := range methods {
			o := operationOf{id: op.OperationID, method: strings.ToUpper(method), path: path}
			for _, p := range op.Parameters {
				if p.In == "query" {
					o.parameters = append(o.parameters, p.Name)
				}
			}
			for status, response := range op.Responses {
				if strings.HasPrefix(status, "2") && response.Content["application/json"].Schema != nil {
					o.answer = response.Content["application/json"].Schema
				}
			}
			list = append(list, o)
		}
	}
	slices.SortFunc(list, func(a, b operationOf) int { return strings.Compare(a.id, b.id) })
	return list, &schemas{document.Components.Schemas, map[string]bool{}}
}

// isPaged says whether an operation's answers are pages: there are parameters for the size of a
// page and for where it begins, and the answer says where the next one does.
func (s *schemas) isPaged(o operationOf) bool {
	_, answer := s.resolve(o.answer)
	members, _ := answer["properties"].(map[string]any)
	for parameter, member := range map[string]string{"next_page": "next_page", "cursor": "next"} {
		if slices.Contains(o.parameters, "limit") && slices.Contains(o.parameters, parameter) && members[member] != nil {
			return true
		}
	}
	return false
}

// TestListsAreBounded: every list in an answer comes in pages, or is bounded by something that
// boundedLists names.
func TestListsAreBounded(t *testing.T) {
	t.Parallel()
	r := whole(t)
	operations, s := operationsOf(t, r)
	for _, o := range operations {
		if o.answer == nil {
			continue
		}
		name, _ := s.resolve(o.answer)
		for _, key := range s.lists(o.answer, o.id, nil) {
			if member, own := strings.CutPrefix(key, name+"."); own && !strings.Contains(member, ".") {
				if s.isPaged(o) {
					continue
				}
				if of := o.id + "." + member; boundedLists[of] != "" {
					key = of
				}
			}
			if s.used[key] = true; boundedLists[key] == "" {
				t.Errorf("%s %s (%s) has a list without pages or a bound: %s", o.method, o.path, o.id, key)
			}
		}
	}
	for key := range boundedLists {
		if !s.used[key] {
			t.Errorf("there is no list %s", key)
		}
	}
}
