// What the workflow bundle exports: one name per workflow type.
export { enrichBatch } from './batch.ts';
export { deliverAgain } from './deliver.ts';
export { lookUpEmail } from './lookup.ts';
export { reverify } from './reverify.ts';
export { sweep } from './sweep.ts';
