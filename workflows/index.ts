// Exports of the workflow bundle: one name per workflow type.
export { enrichBatch } from './batch.ts';
export { deliver } from './delivery.ts';
export { lookUpEmail } from './lookup.ts';
export { reverify } from './reverify.ts';
export { sendTestEvent } from './test-event.ts';
export { submitUpload } from './upload.ts';

// Limits stack traces to three frames. The SDK records a stack trace when a promise is created, and
// the Temporal UI shows these traces as the call stack. With the default of ten frames, recording
// them would take a fifth of the CPU time that a worker spends on workflows. Three frames are
// enough: each function that waits creates its own promise, so the traces together show the whole
// path.
//
// The limit can be set here because this module is preloaded (`bundleWorkflows` of
// deploy/temporal/workers.ts). After preloading, the SDK freezes Error. In a bundle that does not
// preload this module, the line would throw.
Error.stackTraceLimit = 3;
