// What the workflow bundle exports: one name per workflow type.
export { enrichBatch } from './batch.ts';
export { deliver } from './delivery.ts';
export { lookUpEmail } from './lookup.ts';
export { reverify } from './reverify.ts';

// Every promise keeps the stack it was made with, which Temporal's UI shows as the call stack. Ten frames each would be a
// fifth of what workflows cost a worker. Each function that waits has a promise of its own, so that two frames of each show
// the whole way (the third is the SDK's). It can be set because this module is preloaded (`bundleWorkflows` of
// deploy/temporal/workers.ts): the SDK freezes Error afterwards, and a bundle made in another way would throw here.
Error.stackTraceLimit = 3;
