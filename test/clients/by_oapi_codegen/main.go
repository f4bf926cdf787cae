// oapi-codegen: one method per operation. Its response has a field for the body of each status.
package main

import (
	"context"
	"net/http"

	"clients"
	"clients/generated/oapi"

	"github.com/google/uuid"
)

func clientOf(apiKey string) *oapi.ClientWithResponses {
	authorize := func(_ context.Context, request *http.Request) error {
		request.Header.Set("Authorization", "Bearer "+apiKey)
		return nil
	}
	return clients.Must(oapi.NewClientWithResponses(clients.BaseURL, oapi.WithRequestEditorFn(authorize)))
}

var (
	ctx    = context.Background()
	client = clientOf(clients.APIKey)
)

func completed(batchID string) oapi.Envelope {
	params := &oapi.GetBatchParams{Prefer: new("wait=55")}
	for {
		poll := clients.Must(client.GetBatchWithResponse(ctx, batchID, params))
		clients.Assert(poll.JSON200 != nil, poll)
		if poll.JSON200.Batch.Status == oapi.BatchStatusCompleted {
			return *poll.JSON200
		}
	}
}

func main() {
	submit := oapi.SingleSubmit{Npi: clients.Found}
	single := clients.Must(client.SubmitSingleWithResponse(ctx, nil, submit))
	clients.Assert(single.JSON202 != nil, single)
	alone := completed(single.JSON202.BatchId)
	clients.Assert(alone.Webhook == nil && alone.CustomData == nil, alone)

	params := oapi.SubmitBulkParams{IdempotencyKey: new(uuid.NewString())}
	bulk := clients.Must(client.SubmitBulkWithResponse(ctx, &params, oapi.BulkSubmit{
		Npis:                []string{clients.Found, clients.NotFound},
		EnrichmentEmailType: new(oapi.RequestedTypeProfessional),
		Webhook:             &oapi.WebhookTarget{Url: clients.WebhookURL, Mode: new(oapi.WebhookModeBatch)},
		CustomData:          &oapi.CustomData{"order": 17},
	}))
	clients.Assert(bulk.JSON202 != nil, bulk)
	batchID := bulk.JSON202.BatchId
	both := completed(batchID)
	clients.Assert((*both.CustomData)["order"] == 17.0, both)
	found, notFound := both.Data[0], both.Data[1]
	clients.Assert(found.Status == oapi.RequestStatusCompleted, found)
	clients.Assert(*found.EmailType == oapi.EmailTypeProfessional, found)
	clients.Assert(notFound.Status == oapi.RequestStatusNotFound, notFound)
	clients.Assert(notFound.EmailType == nil, notFound)

	one := clients.Must(client.GetRequestWithResponse(ctx, bulk.JSON202.Requests[0].RequestId, nil))
	clients.Assert(one.JSON200 != nil, one)
	clients.Assert(*one.JSON200.Data[0].EmailStatus == oapi.Valid, one)
	known := &oapi.GetRequestParams{IfNoneMatch: &one.Headers200.ETag}
	unchanged := clients.Must(client.GetRequestWithResponse(ctx, bulk.JSON202.Requests[0].RequestId, known))
	clients.Assert(unchanged.StatusCode() == http.StatusNotModified, unchanged)

	balance := clients.Must(client.GetCreditsWithResponse(ctx))
	clients.Assert(balance.JSON200 != nil && balance.JSON200.Used == 1, balance)

	firstOnly := &oapi.GetDeliveriesParams{Limit: new(1)}
	page := clients.Must(client.GetDeliveriesWithResponse(ctx, batchID, firstOnly))
	clients.Assert(page.JSON200 != nil && page.JSON200.Deliveries[0].RequestId == nil, page)

	handleErrors()
}

func handleErrors() {
	submit := oapi.SingleSubmit{Npi: clients.Found}
	poor := clients.Must(clientOf(clients.PoorKey).SubmitSingleWithResponse(ctx, nil, submit))
	insufficient := poor.ApplicationproblemJSON402
	clients.Assert(insufficient != nil && insufficient.Shortfall == 1, poor)

	unknown := clients.Must(client.GetBatchWithResponse(ctx, clients.Unknown, nil))
	missing := unknown.ApplicationproblemJSON404
	clients.Assert(missing != nil && missing.Code == oapi.NotFoundProblemCodeBatchNotFound, unknown)

	empty := oapi.BulkSubmit{Npis: []string{}}
	invalid := clients.Must(client.SubmitBulkWithResponse(ctx, nil, empty))
	clients.Assert(invalid.JSON422 != nil, invalid)
	field := clients.Must(invalid.JSON422.Detail[0].Loc[1].AsInvalidFieldLoc0())
	clients.Assert(field == "npis", invalid)

	busy := clients.Must(clientOf(clients.BusyKey).GetCreditsWithResponse(ctx))
	limited := busy.ApplicationproblemJSON429
	clients.Assert(limited != nil && limited.Code == oapi.RateLimitedProblemCodeRateLimited, busy)
	clients.Assert(busy.Headers429.RetryAfter > 0, busy)
}
