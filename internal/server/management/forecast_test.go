package management_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/autoprune/forecast"
)

// TestAPIForecast: a client asks what a policy, or the saved policies, would have deleted.
func TestAPIForecast(t *testing.T) {
	t.Parallel()
	r, _ := pruning(t)
	for i := range 4 {
		r.Put(t, "app/a", fmt.Sprintf("v%d", i), r.Simple(t, "app/a", i, nil))
	}
	for _, base := range []string{"/organization/app", "/repository/app/a"} {
		path := base + "/autoprunepolicy/forecast"
		var f forecast.Forecast
		r.Manage(t, "POST", path+"?days=30&settings=3,1", `{"method": "number_of_tags", "numTags": 2}`).Into(t, 200, &f)
		if !f.Complete || f.Tags != 4 || f.Deleted != 2 || len(f.Days) != 1 || f.Days[0].Tags != 4 || f.Days[0].Deleted != 2 ||
			time.Since(f.Days[0].At) > time.Minute || len(f.Notes) != 1 || len(f.Policies) != 1 {
			t.Errorf("%s: %+v", path, f)
		}
		if len(f.Settings) != 2 || f.Settings[0].Value != "1" || f.Settings[0].Tags != 1 || f.Settings[1].Deleted != 1 ||
			*f.Bytes == 0 || *f.Settings[0].Bytes != *f.Bytes || *f.Settings[1].Bytes != *f.Bytes { // the images have the same blobs
			t.Errorf("%s: %+v of %d bytes", path, f.Settings, *f.Bytes)
		}
		r.Manage(t, "POST", path, "").Into(t, 200, &f)
		if f.Deleted != 0 || len(f.Policies) != 0 {
			t.Errorf("%s without policies: %+v", path, f)
		}
		r.Manage(t, "POST", path+"?settings=3d", `{"method": "number_of_tags", "numTags": 2}`).Refused(t, 400, "invalid_request", "settings")
		r.Manage(t, "POST", path+"?settings=3", "").Refused(t, 400, "invalid_request", "needs a policy")
		r.Manage(t, "POST", path+"?days=0", "").Refused(t, 400, "invalid_request", "days")
		r.Manage(t, "POST", path, `{"method": "never"}`).Refused(t, 400, "invalid_request", "method")
	}
	r.Manage(t, "POST", "/repository/app/none/autoprunepolicy/forecast", "").Refused(t, 404, "not_found", "not known to this registry")
	r.Manage(t, "POST", "/organization/app/autoprunepolicy", `{"method": "number_of_tags", "numTags": 3, "mode": "observe"}`).Into(t, 201, new(any))
	var f forecast.Forecast
	r.Manage(t, "POST", "/repository/app/a/autoprunepolicy/forecast?days=1000", "").Into(t, 200, &f)
	if f.Deleted != 1 || len(f.Policies) != 1 || f.Policies[0].ID == "" || len(f.Notes) != 2 {
		t.Errorf("the saved policy: %+v", f)
	}
}
