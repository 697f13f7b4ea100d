package management_test

import (
	"strconv"
	"testing"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/oci"
)

func TestQuotaAPI(t *testing.T) {
	t.Parallel()
	r := setup(t)
	const path = "/organization/acme/quota"
	r.Manage(t, "GET", path, "").WantStatus(t, 404)
	r.Push(t, "acme/app", "ten bytes!")
	var none []api.QuotaView
	r.Manage(t, "GET", path, "").Into(t, 200, &none)
	if len(none) != 0 {
		t.Errorf("a namespace without a quota has %v", none)
	}
	var q api.QuotaView
	r.Manage(t, "POST", path, `{"limit": "10 GiB"}`).Into(t, 201, &q) // as Quay's clients do
	if *q.LimitBytes != 10<<30 || *q.Limit != "10.0 GiB" || len(q.Limits) != 0 || !q.Counted || q.UsedBytes != 10 || q.UsedRepositories != 1 || q.LimitTags != nil {
		t.Errorf("made: %+v", q)
	}
	r.Manage(t, "POST", path, `{"limit_bytes": 1}`).WantStatus(t, 400)
	item := path + "/" + strconv.FormatInt(q.ID, 10)
	var limit api.QuotaView
	r.Manage(t, "POST", item+"/limit", `{"type": "Reject", "threshold_percent": 50}`).Into(t, 201, &limit)
	step := item + "/limit/" + strconv.FormatInt(limit.Limits[0].ID, 10)
	r.Manage(t, "PUT", step, `{"type": "Reject", "threshold_percent": 100}`).WantStatus(t, 200)
	var one api.QuotaLimit
	r.Manage(t, "GET", step, "").Into(t, 200, &one)
	if one.Type != "Reject" || one.Percent != 100 {
		t.Errorf("the limit is %+v", one)
	}
	r.Manage(t, "POST", item+"/limit", `{"type": "Reject", "threshold_percent": 100}`).WantStatus(t, 400)
	r.Manage(t, "PUT", item, `{"limit_bytes": 12, "limit_tags": 5}`).Into(t, 200, &q)
	if *q.LimitBytes != 12 || *q.LimitTags != 5 || len(q.Limits) != 1 {
		t.Errorf("changed: %+v", q)
	}
	// A client may change a quota by sending the whole answer of GET.
	r.Manage(t, "PUT", item, string(r.Manage(t, "GET", item, "").Content)).WantStatus(t, 200)
	r.Do(t, "POST", "/v2/acme/app/blobs/uploads/?digest="+digest("more").String(), "more").Want(t, 409, oci.Denied)
	r.Manage(t, "PUT", item, `{"limit_bytes": 0}`).Into(t, 200, &q)
	if q.LimitBytes != nil || q.Limit != nil || q.LimitTags == nil {
		t.Errorf("without a limit on bytes: %+v", q)
	}
	r.Push(t, "acme/app", "more")
	r.Manage(t, "POST", item+"/recount", "").Into(t, 200, &q)
	if q.UsedBytes != 14 {
		t.Errorf("recounted: %+v", q)
	}
	for _, step := range []string{`{"type":"Warning"}`, `{"type":"Warning","limit_percent":0}`, `{"type":"Warning","threshold_percent":101}`} {
		r.Manage(t, "PUT", item, `{"limits":[`+step+`]}`).Refused(t, 400, "invalid_request", "percent")
		r.Manage(t, "POST", item+"/limit", step).Refused(t, 400, "invalid_request", "percent")
	}
	r.Push(t, "library/app", "other")
	var own api.QuotaView
	r.Manage(t, "POST", "/organization/library/quota", `{"limit_tags": 3}`).Into(t, 201, &own)
	var mine []api.QuotaView
	r.Manage(t, "GET", "/user/quota", "").Into(t, 200, &mine)
	if len(mine) != 1 || mine[0].ID != own.ID || mine[0].Namespace != "library" {
		t.Errorf("the quota of the client's own namespace: %+v", mine)
	}
	r.Manage(t, "GET", "/user/quota/"+strconv.FormatInt(own.ID, 10), "").WantStatus(t, 200)
	r.Manage(t, "DELETE", "/organization/library/quota/"+strconv.FormatInt(own.ID, 10), "").WantStatus(t, 204)
	var all struct{ Quotas []api.QuotaView }
	r.Manage(t, "GET", "/quota", "").Into(t, 200, &all)
	if len(all.Quotas) != 1 || all.Quotas[0].Namespace != "acme" {
		t.Errorf("all: %+v", all)
	}
	for _, bad := range []string{`{"limit": "ten"}`, `{"limit_bytes": -1}`, `{"limit_tag": 5}`, `{"limits": [{"type": "Refuse", "threshold_percent": 5}]}`,
		`{"limits": [{"type": "Reject"}]}`, `{"limits": [{"type": "Reject", "threshold_percent": 101}]}`} {
		r.Manage(t, "PUT", item, bad).WantStatus(t, 400)
	}
	r.Manage(t, "DELETE", step, "").WantStatus(t, 204)
	r.Manage(t, "DELETE", step, "").WantStatus(t, 404)
	r.Manage(t, "DELETE", item, "").WantStatus(t, 204)
	r.Manage(t, "DELETE", item, "").WantStatus(t, 404)
	r.Manage(t, "GET", item, "").WantStatus(t, 404)
	r.WantLog(t, audit.Filter{Namespace: "acme", Kinds: []audit.Kind{audit.CreateQuota, audit.DeleteQuota}},
		`org_create_quota acme    {"limit_bytes": 10737418240}`, `org_delete_quota acme    {}`)
}
