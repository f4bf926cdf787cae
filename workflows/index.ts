// Exports of the workflow bundle: one name per workflow type.
export { enrichBatch } from './batch.ts';
export { deliver } from './delivery.ts';
export { lookUpEmail } from './lookup.ts';
export { reverify } from './reverify.ts';

// Limits stack traces to three frames. The SDK keeps the trace of each promise's creation, which
// the Temporal UI shows as the call stack. With ten frames each, these traces would take a fifth of
// a worker's CPU time for workflows. Each function that waits creates its own promise, so two
// frames of each show the whole path (the third frame is the SDK's). The limit can be set here
// because this module is preloaded (`bundleWorkflows` of deploy/temporal/workers.ts). The SDK
// freezes Error afterwards, so this line would throw in a bundle that is built in another way.
Error.stackTraceLimit = 3;
