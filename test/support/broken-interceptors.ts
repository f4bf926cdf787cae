import type { WorkflowInterceptorsFactory } from '@temporalio/workflow';

// The workflows with a change that nobody may deploy: a lookup has another workflow id than its request's. The replay
// test must catch it.

export const interceptors: WorkflowInterceptorsFactory = () => ({
  outbound: [
    {
      async startChildWorkflowExecution({ options, ...input }, next) {
        return await next({ ...input, options: { ...options, workflowId: `lookup-${options.workflowId}` } });
      },
    },
  ],
});
