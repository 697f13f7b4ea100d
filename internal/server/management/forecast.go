package management

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/autoprune"
)

// ForecastQuery has the query parameters of the forecasts.
type ForecastQuery struct {
	Days     int      `query:"days" minimum:"1" default:"90" doc:"Number of days that end now. More than 365 counts as 365; the audit log may not reach back so far"`
	Settings []string `query:"settings" doc:"Ages, numbers or sizes, separated by commas, that the policy in the body might have instead of its own: for each, the answer says what would be stored now. At most 16"`
}

func (q *ForecastQuery) options() autoprune.ForecastOptions {
	return autoprune.ForecastOptions{Days: min(q.Days, autoprune.MaxForecastDays), Settings: q.Settings}
}

// addForecasts adds the operations that tell what policies would have deleted in the past.
func (a *API) addForecasts() {
	type namespaceInput struct {
		PolicyOfNamespace
		ForecastQuery
		Body *policyText `required:"false"`
	}
	type repositoryInput struct {
		PolicyOfRepository
		ForecastQuery
		Body *policyText `required:"false"`
	}
	type output struct{ Body *autoprune.Forecast }
	forecast := func(ctx context.Context, t autoprune.Target, text *policyText, o autoprune.ForecastOptions) (*output, error) {
		if text != nil && len(*text) > 0 {
			policy, err := text.parse("")
			if err != nil {
				return nil, err
			}
			o.Policy = &policy
		}
		done, err := a.turn(ctx)
		if err != nil {
			return nil, err
		}
		defer done()
		f, err := a.opt.Autoprune.Forecast(ctx, t, o)
		return &output{f}, err
	}
	operation := func(of, name, path string) huma.Operation {
		return huma.Operation{
			OperationID: "forecast" + name + "AutoPrunePolicy", Method: http.MethodPost, Path: path + "/autoprunepolicy/forecast",
			Tags: []string{"autoprune"}, Summary: "Tell what auto-pruning would have deleted in " + of + " in the past, day by day",
			Description: "With a policy as the body: what that policy alone would have deleted. Without a body: what all policies " +
				"that apply now would have, also those that only observe or wait. The tags of the past come from the audit log. " +
				"Nothing is changed. The forecast is given up after a minute, and complete is false then. What it couldn't know is in notes.",
			Errors: []int{http.StatusNotFound, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType}, SkipValidateBody: true,
		}
	}
	add(a, auth.Maintain, operation("a namespace", "Organization", "/organization/{orgname}"), func(ctx context.Context, in *namespaceInput) (*output, error) {
		return forecast(ctx, in.target(), in.Body, in.options())
	})
	add(a, auth.Maintain, operation("a repository", "Repository", "/repository/{repository}"), func(ctx context.Context, in *repositoryInput) (*output, error) {
		return forecast(ctx, in.target(), in.Body, in.options())
	})
}
