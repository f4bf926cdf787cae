// What the workflow bundle exports: one name per workflow type.
export { enrichBatch } from './batch.ts';
export { lookUpEmail } from './lookup.ts';
export { deliver, reverify } from './one-step.ts';
