// Package clients has the settings that test/clients.ts passes to each program of this folder.
package clients

import (
	"log"
	"os"
)

var BaseURL = os.Getenv("BASE_URL")

// API keys of an organization with credits, one without, and one over its rate limit.
var (
	APIKey  = os.Getenv("API_KEY")
	PoorKey = os.Getenv("POOR_KEY")
	BusyKey = os.Getenv("BUSY_KEY")
)

// WebhookURL is the address of a receiver that accepts every delivery.
var WebhookURL = os.Getenv("WEBHOOK_URL")

const (
	Found    = "2000000010"
	NotFound = "2000000044"
	Unknown  = "bat_01jd9x6k2tf3r8t0z5q7w4m1ha"
)

// Must returns the value, and ends the program if there is an error.
func Must[T any](value T, err error) T {
	if err != nil {
		log.Panic(err)
	}
	return value
}

// Assert ends the program with the response if the response is not as expected.
func Assert(isExpected bool, response any) {
	if !isExpected {
		log.Panicf("unexpected: %+v", response)
	}
}
